package state

import (
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// UseUp issues all numbers of each kind that has IDs, except the last left ones.
func UseUp(m *Machine, kv kvtx.KV, left uint64) error {
	b, err := m.Begin(kv, 1<<30)
	if err != nil {
		return err
	}
	for _, c := range []record.Counter{record.CInode, record.CStripe, record.CTable, record.CJob, record.CObject} {
		b.Count[c] = kvtx.MaxCounter - left
	}
	return b.Flush()
}
