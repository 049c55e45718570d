"""The cards of this machine, by NVIDIA's own interfaces.

nvml            NVML: cards, processes, events
hardware        temperature, power and load of cards
kernel_driver   whether the kernel has the driver, and when a container must begin again to get it
places          PCIe roots of cards, and the driver's version
package         NVIDIA's package, which reads both
mig             instances of a card
memory_limits   memory limits by control group, in the driver
mps             servers that share a card between programs, and its compute mode
compute_policy  settings that only nvidia-smi has
"""
