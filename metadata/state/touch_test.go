package state_test

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/statetest"
	"github.com/morainefs/moraine/transport/wire"
)

// In states that are small enough, the tests of this package check Touched after every command: it
// must list each changed cacheable item under the lease that covered it.

// cacheable is what clients may have cached: attributes and entries as the bytes of their records,
// and the lease of attributes.
type cacheable map[kvtx.Touch]string

const (
	tableInode, tableDentry = 0x10, 0x11 // as in docs/formats/metadata-keys.md
	// checkedInodes bounds the states whose every change is checked.
	checkedInodes = 60
)

// cached is what clients can cache of a store, and what a test needs to read it again cheaply.
type cached struct {
	items cacheable // nil if the state is too large
	// kv and changes say of which store it is, and when.
	kv      *statetest.KV
	changes int
	// leases has the lease over the attributes in a record of an inode, by its key and bytes.
	leases map[string]moraine.InodeID
}

// cacheableNow reads what clients can cache; nil if the state is too large. It reads nothing if
// no inode and no entry has changed since the last time.
func (b *bench) cacheableNow() cacheable {
	changes := b.kv.Changes(tableInode) + b.kv.Changes(tableDentry)
	if b.cached.kv != b.kv || b.cached.changes != changes {
		b.cached.items, b.cached.kv, b.cached.changes = b.readCacheable(), b.kv, changes
	}
	return b.cached.items
}

func (b *bench) readCacheable() cacheable {
	c := cacheable{}
	inodes := map[moraine.InodeID]string{}
	partition := []byte{byte(b.partition >> 8), byte(b.partition)}
	table := func(n byte) []byte { return append(partition[:2:2], n) }
	err := b.kv.Scan(table(tableInode), table(tableInode+1), func(k, v []byte) bool {
		inodes[moraine.InodeID(binary.BigEndian.Uint64(k[3:]))] = string(v)
		return len(inodes) <= checkedInodes
	})
	if err != nil {
		b.t.Fatal(err)
	}
	if len(inodes) > checkedInodes {
		return nil
	}
	leases := map[string]moraine.InodeID{}
	for id, encoded := range inodes {
		key := id.String() + encoded
		lease, known := b.cached.leases[key]
		if !known {
			_, seen, err := b.m.ReadSeen(b.kv, &statepb.Caller{Role: "admin", Scope: "/"}, &wire.MetaRequest{Partition: b.partition,
				Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: uint64(id)}}}, 0)
			if seen.All { // of another partition
				return nil
			}
			if err != nil || len(seen.Touches) != 1 {
				b.t.Fatalf("inode %s shows %v (%v)", id, seen, err)
			}
			lease = seen.Touches[0].Lease
		}
		if leases[key] = lease; lease != 0 {
			c[kvtx.Touch{Lease: lease, Inode: id}] = b.withoutAtime(encoded)
		}
	}
	b.cached.leases = leases
	err = b.kv.Scan(table(tableDentry), table(tableDentry+1), func(k, v []byte) bool {
		c[kvtx.Touch{Lease: moraine.InodeID(binary.BigEndian.Uint64(k[3:])), Name: string(k[11:])}] = string(v)
		return true
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

// withoutAtime returns a record of an inode with the atime 0: a read elsewhere raises it, and no cache hears
// of that.
func (b *bench) withoutAtime(encoded string) string {
	b.t.Helper()
	var i record.Inode
	if err := i.Decode([]byte(encoded)); err != nil {
		b.t.Fatal(err)
	}
	i.Atime = 0
	return string(i.Encode())
}

// checkTouched compares the changes of the last entry with its results.
func (b *bench) checkTouched(results []state.Result) {
	b.t.Helper()
	before := b.cached.items
	now := b.cacheableNow()
	if before == nil || now == nil {
		return
	}
	touched, gone := map[kvtx.Touch]bool{}, map[moraine.InodeID]bool{}
	for _, r := range results {
		for _, t := range r.Touched {
			if t.Name == "" && t.Change == kvtx.Removed {
				gone[t.Inode] = true
			}
			t.Change = 0
			if t.Name != "" {
				t.Inode = 0
			}
			touched[t] = true
		}
	}
	for what, old := range before {
		if now[what] != old && !touched[what] {
			b.t.Errorf("entry %d changed %+v and did not say so: %v", b.index, what, results)
		}
		if _, is := now[what]; what.Name == "" && (!is || gone[what.Inode]) && gone[what.Inode] == b.there(what.Inode) {
			b.t.Errorf("entry %d: inode %s is gone, or not: what was touched says otherwise: %v", b.index, what.Inode, results)
		}
	}
	for what := range now {
		if _, was := before[what]; !was && what.Name != "" && !touched[what] {
			b.t.Errorf("entry %d made the entry %+v and did not say so: %v", b.index, what, results)
		}
	}
}

// there reports whether an inode has a record under any lease.
func (b *bench) there(id moraine.InodeID) bool {
	b.t.Helper()
	resp, err := b.m.Read(b.kv, &statepb.Caller{Role: "admin", Scope: "/"}, &wire.MetaRequest{Partition: b.partition,
		Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: uint64(id)}}})
	if err != nil {
		b.t.Fatal(err)
	}
	return resp.GetError() == nil
}
