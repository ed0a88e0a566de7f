package record

// Silent reports whether an open step has waited too long for its next seal.
func (s *Step) Silent(now uint64) bool { return now-s.LastSeal >= s.Timeout }

// SilenceReason says why a silent step is aborted.
func (s *Step) SilenceReason() string {
	return "no rank sealed for " + Utoa(s.Timeout/1000) + " s; " + Utoa(uint64(s.Sealed)) + " of " + Utoa(uint64(s.World)) + " had"
}
