package record

// LostSpare is where stripes stand in the queue that have too few chunks left:
// after all that something can be done about.
const LostSpare = 0xff
