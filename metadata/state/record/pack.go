package record

import (
	"encoding/binary"

	"github.com/morainefs/moraine/transport/wire"
)

// PackTask is what a live REWRITE job that packs has to do; nil for another.
func (j *Job) PackTask() *wire.RewriteTask {
	if j.Kind != wire.JobKind_JOB_KIND_REWRITE || len(j.Stripes) > 0 || len(j.Cursor) < 8 {
		return nil
	}
	task := &wire.RewriteTask{Settled: binary.BigEndian.Uint64(j.Cursor)}
	for c := j.Cursor[8:]; len(c) >= 8; c = c[8:] {
		task.Files = append(task.Files, binary.BigEndian.Uint64(c))
	}
	return task
}
