// Package keys makes every key of the state. docs/formats/metadata-keys.md lists the tables.
//
// A method of Keys returns one key and is named for its table. A plural name returns the prefix of
// several keys. The keys of each area are in a file of their own.
package keys

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
)

// Keys makes the keys of one partition.
type Keys struct {
	partition
	clusterKeys
	sessionKeys
	nameKeys
	contentKeys
	fleetKeys
	jobKeys
	objectKeys
	ckptKeys
}

// Of returns the keys of partition p.
func Of(p moraine.Partition) Keys {
	at := partition{p}
	return Keys{at, clusterKeys{at}, sessionKeys{at}, nameKeys{at}, contentKeys{at}, fleetKeys{at}, jobKeys{at}, objectKeys{at}, ckptKeys{at}}
}

// partition begins every key.
type partition struct{ P moraine.Partition }

// Key starts a key of a table and reserves room for n more bytes.
func (k partition) Key(table byte, n int) []byte {
	b := make([]byte, 3, 3+n)
	binary.BigEndian.PutUint16(b, uint16(k.P))
	b[2] = table
	return b
}

// U64 returns the key of a table with one number.
func (k partition) U64(table byte, a uint64) []byte {
	return record.Be64(k.Key(table, 8), a)
}

func (k partition) u64x2(table byte, a, b uint64) []byte {
	return record.Be64(record.Be64(k.Key(table, 16), a), b)
}

// Top is the top directory of the partition. For partition 0 this is the root.
func (k partition) Top() moraine.InodeID { return moraine.InodeID(moraine.MakeID(k.P, 1, 1)) }

// All returns the bounds of every key of the partition. The last partition is never used, so there
// is always a next one.
func (k partition) All() (lo, hi []byte) {
	lo = binary.BigEndian.AppendUint16(nil, uint16(k.P))
	return lo, binary.BigEndian.AppendUint16(nil, uint16(k.P)+1)
}

// Table returns the prefix of all keys of a table.
func (k partition) Table(table byte) []byte { return k.Key(table, 0) }
