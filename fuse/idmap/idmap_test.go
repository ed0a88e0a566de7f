package idmap_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/fuse/idmap"
	"github.com/morainefs/moraine/internal/testseed"
)

func TestRanges(t *testing.T) {
	m, err := idmap.New([]idmap.Range{{Cluster: 1000, Local: 2000, Count: 10}, {Cluster: 7, Local: 1000, Count: 1}}, nil)
	require.NoError(t, err)
	for cluster, local := range map[uint32]uint32{0: 0, 999: 999, 1000: 2000, 1009: 2009, 1010: 1010, 7: 1000, 6: 6, 8: 8,
		2000: idmap.Nobody, 2009: idmap.Nobody, 2010: 2010, math.MaxUint32: math.MaxUint32} {
		require.Equal(t, local, m.Local(cluster), cluster)
	}
	for local, cluster := range map[uint32]uint32{0: 0, 2000: 1000, 2009: 1009, 2010: 2010, 1000: 7, 1999: 1999} {
		got, ok := m.Cluster(local)
		require.True(t, ok, local)
		require.Equal(t, cluster, got, local)
	}
	for _, local := range []uint32{7, 1001, 1009} {
		_, ok := m.Cluster(local)
		require.False(t, ok, local)
	}
	var none idmap.IDs
	require.EqualValues(t, 5, none.Local(5))
}

// Random ranges never make one of two users: what is not Nobody leads back to where it came from.
func TestNoTwoIDsAreOne(t *testing.T) {
	rng := rand.New(rand.NewPCG(testseed.First(t), 0))
	made := 0
	for range 2000 {
		var ranges []idmap.Range
		for range rng.IntN(4) {
			ranges = append(ranges, idmap.Range{Cluster: rng.Uint32N(30), Local: rng.Uint32N(30), Count: 1 + rng.Uint32N(8)})
		}
		m, err := idmap.New(ranges, nil)
		if err != nil {
			require.Equal(t, moraine.InvalidArgument, moraine.KindOf(err))
			continue
		}
		made++
		for id := range uint32(45) {
			if local := m.Local(id); local != idmap.Nobody {
				back, ok := m.Cluster(local)
				require.True(t, ok)
				require.Equal(t, id, back, ranges)
			}
			if cluster, ok := m.Cluster(id); ok {
				require.Equal(t, id, m.Local(cluster), ranges)
			}
		}
	}
	require.Greater(t, made, 200)
}

func TestRangesThatCollideAreRefused(t *testing.T) {
	for says, ranges := range map[string][]idmap.Range{
		"an ID of the cluster in common":   {{Cluster: 1000, Local: 1, Count: 10}, {Cluster: 1009, Local: 50, Count: 1}},
		"an ID of this node in common":     {{Cluster: 1, Local: 1000, Count: 1}, {Cluster: 2, Local: 995, Count: 6}},
		"1:4294967295:1: its numbers":      {{Cluster: 1, Local: math.MaxUint32, Count: 1}},
		"1:2:0: its numbers go from 0":     {{Cluster: 1, Local: 2}},
		"5:0:4294967295: its numbers go f": {{Cluster: 5, Count: math.MaxUint32}},
	} {
		_, err := idmap.New(ranges, nil)
		require.ErrorContains(t, err, says)
		require.Equal(t, moraine.InvalidArgument, moraine.KindOf(err))
	}
}

// A list keeps the order that the service requires, and what is no list stays.
func TestLists(t *testing.T) {
	users, err := idmap.New([]idmap.Range{{Cluster: 1000, Local: 2000, Count: 1}}, nil)
	require.NoError(t, err)
	m := idmap.Map{Users: users}
	entry := func(tag, id byte, high byte) string { return string([]byte{tag, 0, 4, 0, id, high, 0, 0}) }
	head := "\x02\x00\x00\x00"
	u1000, u1500, u2000 := entry(2, 0xe8, 3), entry(2, 0xdc, 5), entry(2, 0xd0, 7)
	group := entry(8, 0xe8, 3)
	require.Equal(t, head+u1500+u2000+group, string(m.LocalList([]byte(head+u1000+u1500+group))))
	back, ok := m.ClusterList([]byte(head + u1500 + u2000 + group))
	require.True(t, ok)
	require.Equal(t, head+u1000+u1500+group, string(back))
	_, ok = m.ClusterList([]byte(head + u1000))
	require.False(t, ok, "1000 is another user in the cluster")
	for _, odd := range []string{"", "no list", head + "x"} {
		same, ok := m.ClusterList([]byte(odd))
		require.True(t, ok)
		require.Equal(t, odd, string(same))
	}
}
