package agent

// KeptStep is keptStep, for tests.
var KeptStep = keptStep
