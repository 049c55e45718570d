"""What tests build with: objects, nodes, pools, simulated cards, stand-ins. One module a thing; nothing here
asserts."""
