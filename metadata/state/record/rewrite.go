package record

import (
	"encoding/binary"

	"github.com/morainefs/moraine/transport/wire"
)

// RewriteTask is what a live REWRITE job has to do; nil for other jobs.
func (j *Job) RewriteTask() *wire.RewriteTask {
	if task := j.PackTask(); task != nil {
		return task
	}
	if j.Kind != wire.JobKind_JOB_KIND_REWRITE || len(j.Cursor) < 16 {
		return nil
	}
	task := &wire.RewriteTask{Offset: binary.BigEndian.Uint64(j.Cursor), End: binary.BigEndian.Uint64(j.Cursor[8:])}
	if len(j.Cursor) > 16 {
		task.Fewer = uint32(j.Cursor[16])
	}
	for _, s := range j.Stripes {
		task.Stripes = append(task.Stripes, uint64(s))
	}
	return task
}
