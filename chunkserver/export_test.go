package chunkserver

// ReportSlice is how many chunks one report holds at most.
const ReportSlice = reportSlice

// Pace is the rule of when the next report of a device begins.
var Pace = pace
