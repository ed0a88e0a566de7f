package chunkserver

import "time"

// SetCloseWait sets how long SetDevices waits until dropped devices are closed.
func (s *Server) SetCloseWait(d time.Duration) { s.changes.closeWait = d }

// ReportSlice is the most chunks of one report.
const ReportSlice = reportSlice

// Pace decides when the next report of a device begins.
var Pace = pace
