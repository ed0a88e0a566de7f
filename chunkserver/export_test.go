package chunkserver

// ReportSlice is how many chunks one report holds at most.
const ReportSlice = reportSlice
