package chunkserver

import "time"

// SetCloseWait sets how long SetDevices waits for what was let go to be closed.
func (s *Server) SetCloseWait(d time.Duration) { s.closeWait = d }

// ReportSlice is how many chunks one report holds at most.
const ReportSlice = reportSlice

// KnowsMemoryLevel reports whether chunks are taken at level memory.
func (s *Server) KnowsMemoryLevel() bool { return s.memoryLevel.Load() }

// Pace is the rule of when the next report of a device begins.
var Pace = pace
