package idmap_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/fuse/idmap"
	"github.com/morainefs/moraine/internal/testseed"
)

func TestRanges(t *testing.T) {
	m, err := idmap.New([]idmap.Range{{Cluster: 1000, Local: 2000, Count: 10}, {Cluster: 7, Local: 1000, Count: 1},
		{Cluster: 2000, Local: 1001, Count: 9}, {Cluster: 2009, Local: 7, Count: 1}}, nil)
	require.NoError(t, err)
	for cluster, local := range map[uint32]uint32{0: 0, 999: 999, 1000: 2000, 1009: 2009, 1010: 1010, 7: 1000, 6: 6, 8: 8,
		2000: 1001, 2008: 1009, 2009: 7, 2010: 2010, math.MaxUint32: math.MaxUint32} {
		require.Equal(t, local, m.Local(cluster), cluster)
		require.Equal(t, cluster, m.Cluster(local), local)
	}
	var none idmap.IDs
	require.EqualValues(t, 5, none.Local(5))
}

// Random ranges never make one of two users: each ID leads back to where it came from. What an error
// says to add completes the ranges.
func TestNoTwoIDsAreOne(t *testing.T) {
	rng := rand.New(rand.NewPCG(testseed.First(t), 0))
	made, completed := 0, 0
	for range 2000 {
		var ranges []idmap.Range
		for range rng.IntN(4) {
			ranges = append(ranges, idmap.Range{Cluster: rng.Uint32N(30), Local: rng.Uint32N(30), Count: 1 + rng.Uint32N(8)})
		}
		given := len(ranges)
		m, err := idmap.New(ranges, nil)
		if err != nil {
			require.Equal(t, moraine.InvalidArgument, moraine.KindOf(err))
			_, add, ok := strings.Cut(err.Error(), "complete the mappings: ")
			if !ok {
				continue
			}
			for _, s := range strings.Fields(add) {
				var r idmap.Range
				_, err := fmt.Sscanf(s, "%d:%d:%d", &r.Cluster, &r.Local, &r.Count)
				require.NoError(t, err, s)
				ranges = append(ranges, r)
			}
			m, err = idmap.New(ranges, nil)
			require.NoError(t, err, ranges)
			completed++
		}
		made++
		for id := range uint32(45) {
			require.Equal(t, id, m.Cluster(m.Local(id)), ranges)
			require.Equal(t, id, m.Local(m.Cluster(id)), ranges)
		}
		for _, r := range ranges[:given] {
			require.Equal(t, r.Local, m.Local(r.Cluster), ranges)
		}
	}
	require.Greater(t, made, 200)
	require.Greater(t, completed, 100)
}

// Ranges that give a number away without another for its ID are refused. Otherwise user 2000 of the
// cluster could only appear as some account of the node, which would then own the files.
func TestRangesThatShadowAnIDAreRefused(t *testing.T) {
	for says, ranges := range map[string][]idmap.Range{
		"ID 2000 of the cluster has no number on this node, since 2000 is given to another: map it too. Ranges that complete the mappings: 2000:1000:1": {
			{Cluster: 1000, Local: 2000, Count: 1}},
		"mappings: 60000:5000:100":                 {{Cluster: 5000, Local: 60000, Count: 100}},
		"mappings: 15:10:5":                        {{Cluster: 10, Local: 15, Count: 5}},
		"mappings: 20:10:5":                        {{Cluster: 10, Local: 15, Count: 10}},
		"mappings: 2000:7:1 2001:50:1 2002:1001:8": {{Cluster: 1001, Local: 2000, Count: 8}, {Cluster: 7, Local: 2008, Count: 1}, {Cluster: 50, Local: 2009, Count: 1}},
	} {
		_, err := idmap.New(ranges, nil)
		require.ErrorContains(t, err, says)
		require.Equal(t, moraine.InvalidArgument, moraine.KindOf(err))
	}
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
	users, err := idmap.New([]idmap.Range{{Cluster: 1000, Local: 2000, Count: 1}, {Cluster: 2000, Local: 1000, Count: 1}}, nil)
	require.NoError(t, err)
	m := idmap.Map{Users: users}
	entry := func(tag, id byte, high byte) string { return string([]byte{tag, 0, 4, 0, id, high, 0, 0}) }
	head := "\x02\x00\x00\x00"
	u1000, u1500, u2000 := entry(2, 0xe8, 3), entry(2, 0xdc, 5), entry(2, 0xd0, 7)
	group := entry(8, 0xe8, 3)
	require.Equal(t, head+u1500+u2000+group, string(m.LocalList([]byte(head+u1000+u1500+group))))
	require.Equal(t, head+u1000+u1500+group, string(m.ClusterList([]byte(head+u1500+u2000+group))))
	require.Equal(t, head+u2000+group, string(m.ClusterList([]byte(head+u1000+group))))
	for _, odd := range []string{"", "no list", head + "x"} {
		require.Equal(t, odd, string(m.ClusterList([]byte(odd))))
	}
}
