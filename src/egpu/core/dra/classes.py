"""The DeviceClass of an ElasticGPUClass: the same name, technology and terms, for claims of resource.k8s.io."""

from typing import Final

from egpu.api import names
from egpu.api.objects import ElasticGPUClass
from egpu.core.demand.classes import POLICY, PRECISION, class_terms
from egpu.core.demand.kinds import WORK
from egpu.core.demand.limits import CAP, COMPUTE_MODE
from egpu.core.dra.configuration import KIND
from egpu.core.provisioners.oversubscription import MEMORY_OVERSUBSCRIPTION
from egpu.core.provisioners.shareable import SHAREABLE
from egpu_base.api.devices import (
    CelSelector,
    ClassConfiguration,
    DeviceClass,
    DeviceClassSpec,
    DeviceSelector,
    OpaqueConfiguration,
)
from egpu_base.api.objects import ObjectMeta, OwnerReference
from egpu_base.errors import NotSupported

FOLLOWED: Final = (COMPUTE_MODE, WORK, MEMORY_OVERSUBSCRIPTION)
"""The parameters that become configuration of the DeviceClass."""
WITHOUT_EFFECT: Final = (SHAREABLE, PRECISION, POLICY)
"""Parameters that mean nothing to a DeviceClass: any ResourceClaim may be shared, none asks for TFLOPS, and the
extender reads the policy from the ElasticGPUClass."""


def device_class(klass: ElasticGPUClass) -> DeviceClass:
    """Return the DeviceClass, owned by the class.

    Raises:
        NotSupported: claims of resource.k8s.io cannot have this technology, or not under these parameters.
        InvalidDemand, UnknownProvisioner: the class is not valid.
    """
    terms = class_terms(klass)
    attributes = [name for name, technology in names.CLAIM_TECHNOLOGIES.items() if technology == terms.technology.name]
    if not attributes:
        raise NotSupported(f"class {klass.name}: {terms.technology.name} cannot serve ResourceClaims yet")
    if unknown := sorted(terms.parameters.keys() - {*FOLLOWED, *WITHOUT_EFFECT}):
        raise NotSupported(f"class {klass.name}: ResourceClaims cannot follow its parameter {unknown[0]} yet")
    parameters = {"apiVersion": names.API_VERSION, "kind": KIND, "technology": terms.technology.name}
    parameters |= {name: terms.parameters[name] for name in FOLLOWED if name in terms.parameters}
    # These defaults are written down, so that no claim decides them. It may choose `work`, which costs no other slice.
    parameters = {COMPUTE_MODE: CAP, MEMORY_OVERSUBSCRIPTION: "1"} | parameters
    suits = f'device.driver == "{names.DRIVER}" && device.attributes["{names.DRIVER}"].{attributes[0]}'
    opaque = OpaqueConfiguration(driver=names.DRIVER, parameters=dict(parameters))
    owner = OwnerReference(
        api_version=names.API_VERSION, kind="ElasticGPUClass", name=klass.name, uid=klass.uid, controller=True
    )
    return DeviceClass(
        metadata=ObjectMeta(name=klass.name, owner_references=[owner]),
        spec=DeviceClassSpec(
            selectors=[DeviceSelector(cel=CelSelector(expression=suits))], config=[ClassConfiguration(opaque=opaque)]
        ),
    )
