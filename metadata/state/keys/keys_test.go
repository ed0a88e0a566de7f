package keys

import (
	"bytes"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
)

// Keys of one table sort by their numbers, and no key of one table lies in the range of another.
func TestKeysSort(t *testing.T) {
	k := Of(3)
	for _, pair := range [][2][]byte{
		{k.Dentry(1, "a"), k.Dentry(1, "b")},
		{k.Dentry(1, "zzz"), k.Dentry(2, "a")},
		{k.Ref(9, 255), k.Ref(9, 256)},
		{k.Answer(1, 255), k.Answer(1, 256)},
		{k.Tombstone(false, 1, 5, moraine.ChunkID{Stripe: 9}), k.Tombstone(false, 1, 6, moraine.ChunkID{Stripe: 1})},
		{k.Table(record.TabInode), k.Inode(0)},
		{k.Inode(1<<64 - 1), k.Table(record.TabDentry)},
	} {
		if bytes.Compare(pair[0], pair[1]) >= 0 {
			t.Errorf("%x does not sort before %x", pair[0], pair[1])
		}
	}
}
