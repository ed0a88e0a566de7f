package keys

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
)

// contentKeys are the keys of contents, extent tables, grants and stripes. Ranges are keyed by
// their end: the first key after an offset is the range that covers or follows it.
type contentKeys struct{ partition }

func (k contentKeys) Refs(content uint64) []byte { return k.U64(record.TabRef, content) }

func (k contentKeys) Ref(content uint64, end int64) []byte {
	return k.u64x2(record.TabRef, content, uint64(end))
}

func (k contentKeys) DeadContent(content uint64) []byte { return k.U64(record.TabDead, content) }

func (k contentKeys) ExtTable(t moraine.TableID) []byte { return k.U64(record.TabTable, uint64(t)) }

func (k contentKeys) Exts(t moraine.TableID) []byte { return k.U64(record.TabExt, uint64(t)) }

func (k contentKeys) Ext(t moraine.TableID, end int64) []byte {
	return k.u64x2(record.TabExt, uint64(t), uint64(end))
}

func (k contentKeys) Inline(i moraine.InlineID) []byte { return k.U64(record.TabInline, uint64(i)) }

func (k contentKeys) Grant(last moraine.StripeID) []byte { return k.U64(record.TabGrant, uint64(last)) }

func (k contentKeys) EndedGrant(last moraine.StripeID) []byte {
	return k.U64(record.TabEndedGrant, uint64(last))
}

func (k contentKeys) Stripe(s moraine.StripeID) []byte { return k.U64(record.TabStripe, uint64(s)) }

func (k contentKeys) UnsafeFile(i moraine.InodeID) []byte { return k.U64(record.TabUnsafe, uint64(i)) }
