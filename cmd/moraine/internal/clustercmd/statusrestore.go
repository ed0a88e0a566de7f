package clustercmd

import "github.com/morainefs/moraine/cmd/moraine/internal/cli"

// judgeReports says that it is not known yet what devices have, since the metadata was
// restored.
func (s *clusterStatus) judgeReports(unreported uint64) {
	s.Unreported = unreported
	if unreported == 0 {
		return
	}
	s.worse(healthDegraded, "%s not reported since the metadata was restored: until then, missing "+
		"chunks are unknown, the leader looks for chunks that moved since the backup, and nothing is "+
		"deleted",
		cli.Are(int(unreported), "device has", "devices have"))
}
