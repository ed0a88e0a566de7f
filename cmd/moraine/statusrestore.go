package main

// judgeReports says that it is not known yet what devices hold, since the metadata was
// restored.
func (s *clusterStatus) judgeReports(unreported uint64) {
	s.Unreported = unreported
	if unreported == 0 {
		return
	}
	s.worse(healthDegraded, "%s not reported since the metadata was restored: what is missing is not known yet, chunks that were moved since the backup are still looked for, and nothing is deleted",
		are(int(unreported), "device has", "devices have"))
}
