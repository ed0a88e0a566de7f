package clustercmd

import (
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/transport/wire"
)

// judgeObjects adds findings for objects that are missing or differ from their records, and for jobs
// of the object tier that fail again and again.
func (s *clusterStatus) judgeObjects(c *wire.ClusterReply) {
	if s.LostObjects = c.LostObjects; s.LostObjects > 0 {
		s.worse(healthCritical, "%s not in the bucket as recorded, and evicted files need them to be read: `moraine cluster lost` names the files; put the objects back, or write the files again, or remove them",
			cli.Are(int(s.LostObjects), "object is", "objects are"))
	}
	if s.BadObjects = c.BadObjects; s.BadObjects > 0 {
		s.worse(healthDegraded, "%s not in the bucket as recorded; the files are whole without them: "+
			"`moraine fsck` names them, and `moraine flush` uploads them again",
			cli.Are(int(s.BadObjects), "object is", "objects are"))
	}
	if s.StuckMoves = c.StuckMoves; s.StuckMoves > 0 {
		s.worse(healthDegraded, "%s between the cluster and its bucket again and again: `moraine tier "+
			"status` shows one with its error, `moraine job ls` all", cli.Are(int(s.StuckMoves), "job fails", "jobs fail"))
	}
}
