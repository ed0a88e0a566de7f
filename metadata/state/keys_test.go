package state

import (
	"bytes"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
)

// Keys of one table sort as their numbers do, and no key of one table lies in
// the range of another.
func TestKeysSort(t *testing.T) {
	k := keys{p: 3}
	for _, pair := range [][2][]byte{
		{k.dentry(1, "a"), k.dentry(1, "b")},
		{k.dentry(1, "zzz"), k.dentry(2, "a")},
		{k.ref(9, 255), k.ref(9, 256)},
		{k.answer(1, 255), k.answer(1, 256)},
		{k.tombstone(false, 1, 5, moraine.ChunkID{Stripe: 9}), k.tombstone(false, 1, 6, moraine.ChunkID{Stripe: 1})},
		{k.table(record.TabInode), k.inode(0)},
		{k.inode(1<<64 - 1), k.table(record.TabDentry)},
	} {
		if bytes.Compare(pair[0], pair[1]) >= 0 {
			t.Errorf("%x does not sort before %x", pair[0], pair[1])
		}
	}
	if end := prefixEnd([]byte{0, 0xff, 0xff}); !bytes.Equal(end, []byte{1}) {
		t.Errorf("prefixEnd: %x", end)
	}
	if end := prefixEnd([]byte{0xff}); end != nil {
		t.Errorf("prefixEnd of the last prefix: %x", end)
	}
}
