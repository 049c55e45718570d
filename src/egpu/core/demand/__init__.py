"""What pods and claims ask for, in one form.

pods       demands of pods and claims, whichever way they were written
amounts    amounts in every vocabulary, normalised
selection  which nodes a pod selects, and so which card models it accepts
"""
