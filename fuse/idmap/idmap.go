// Package idmap translates the numbers of users and groups between a cluster and a node that gives
// the same people other numbers. It knows numbers only, and reads no list of users.
//
// One path through it: the mount gets the attributes of a file, whose owner is 1000 in the cluster.
// Map.Users.Local says that this user is 2000 on the node. A program of 2000 makes a file:
// Map.Users.Cluster says that it belongs to 1000 there.
package idmap

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/morainefs/moraine"
)

// Range maps the Count IDs from Cluster on, in the cluster, to those from Local on, on the node.
type Range struct{ Cluster, Local, Count uint32 }

func (r Range) String() string { return fmt.Sprintf("%d:%d:%d", r.Cluster, r.Local, r.Count) }

// IDs maps the numbers of users, or of groups, one to one: it is a permutation. The zero value leaves
// all as they are. It does not change, and may be used concurrently.
type IDs struct {
	ranges []Range
	// shown, if not nil, is the number that the owner of every file has on the node.
	shown *uint32
}

// Map has both. The zero value changes nothing.
type Map struct{ Users, Groups IDs }

// New returns the IDs of some ranges. It fails with InvalidArgument if one is empty or goes beyond
// the last number, or if two overlap in the cluster or on the node. It also fails if the ranges give
// a number of the node away, and the ID of the cluster with that number gets no other: the error
// names the ranges that are missing. shown may be nil; otherwise every file appears as owned by it.
func New(ranges []Range, shown *uint32) (IDs, error) {
	for n, r := range ranges {
		if r.Count == 0 || uint64(max(r.Cluster, r.Local))+uint64(r.Count) > math.MaxUint32 {
			return IDs{}, invalid("the mapping %s: its numbers go from 0 to %d", r, uint32(math.MaxUint32-1))
		}
		for _, other := range ranges[:n] {
			if overlap(r.Cluster, other.Cluster, r.Count, other.Count) {
				return IDs{}, invalid("the mappings %s and %s have an ID of the cluster in common", other, r)
			}
			if overlap(r.Local, other.Local, r.Count, other.Count) {
				return IDs{}, invalid("the mappings %s and %s have an ID of this node in common: two users would be one", other, r)
			}
		}
	}
	if add := missing(ranges); len(add) > 0 {
		return IDs{}, invalid("ID %d of the cluster has no number on this node, since %d is given to another: map it too. "+
			"Ranges that complete the mappings: %s", add[0].Cluster, add[0].Cluster, strings.Trim(fmt.Sprint(add), "[]"))
	}
	return IDs{ranges: slices.Clone(ranges), shown: shown}, nil
}

func overlap(a, b, countA, countB uint32) bool {
	return uint64(a) < uint64(b)+uint64(countB) && uint64(b) < uint64(a)+uint64(countA)
}

func invalid(format string, args ...any) error {
	return &moraine.Error{Op: "map IDs", Kind: moraine.InvalidArgument, Err: fmt.Errorf(format, args...)}
}

// Local returns what an ID of the cluster is on the node. An ID without a range stays.
func (m *IDs) Local(id uint32) uint32 {
	for _, r := range m.ranges {
		if id-r.Cluster < r.Count { // below Cluster it wraps around
			return id - r.Cluster + r.Local
		}
	}
	return id
}

// Cluster returns what an ID of the node is in the cluster. It is the inverse of Local.
func (m *IDs) Cluster(id uint32) uint32 {
	for _, r := range m.ranges {
		if id-r.Local < r.Count {
			return id - r.Local + r.Cluster
		}
	}
	return id
}

// Owner returns what the owner of a file is on the node.
func (m *IDs) Owner(id uint32) uint32 {
	if m.shown != nil {
		return *m.shown
	}
	return m.Local(id)
}

// Shown returns the number that every owner has on the node; false: each has its own.
func (m *IDs) Shown() (id uint32, all bool) {
	if m.shown == nil {
		return 0, false
	}
	return *m.shown, true
}

// The form in which Linux passes an access control list: a header of 4 bytes, and entries of 8 with
// tag, permissions and ID, all little-endian (linux/posix_acl_xattr.h).
const (
	listHeader = 4
	entryBytes = 8
	namedUser  = 0x02
	namedGroup = 0x08
)

// LocalList returns an access control list of the cluster with the IDs of the node.
func (m *Map) LocalList(list []byte) []byte {
	return m.list(list, (*IDs).Local)
}

// ClusterList returns an access control list of the node with the IDs of the cluster.
func (m *Map) ClusterList(list []byte) []byte { return m.list(list, (*IDs).Cluster) }

// list returns a list with other IDs, its entries in order: by tag, and then by ID. What is no list
// stays as it is: the service refuses it.
func (m *Map) list(list []byte, to func(*IDs, uint32) uint32) []byte {
	if len(m.Users.ranges)+len(m.Groups.ranges) == 0 || len(list) < listHeader || (len(list)-listHeader)%entryBytes != 0 {
		return list
	}
	out := slices.Clone(list)
	var entries [][]byte
	for e := range slices.Chunk(slices.Clone(list[listHeader:]), entryBytes) {
		ids := map[uint16]*IDs{namedUser: &m.Users, namedGroup: &m.Groups}[tagOf(e)]
		if ids != nil {
			binary.LittleEndian.PutUint32(e[4:], to(ids, idOf(e)))
		}
		entries = append(entries, e)
	}
	slices.SortStableFunc(entries, func(a, b []byte) int {
		return cmp.Or(cmp.Compare(tagOf(a), tagOf(b)), cmp.Compare(idOf(a), idOf(b)))
	})
	return append(out[:listHeader], slices.Concat(entries...)...)
}

func tagOf(entry []byte) uint16 { return binary.LittleEndian.Uint16(entry) }
func idOf(entry []byte) uint32  { return binary.LittleEndian.Uint32(entry[4:]) }
