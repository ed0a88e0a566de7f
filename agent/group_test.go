package agent

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// grouped returns the groups of tensors, whose bytes follow from their names and from salt.
func grouped(salt string, tensors ...agentproto.Tensor) []group {
	keys := make([]sliceKey, len(tensors))
	for i := range tensors {
		keys[i] = sliceKey{placeOf(&tensors[i]), sha256.Sum256([]byte(salt + tensors[i].Name))}
	}
	return groupsOf(&agentproto.Seal{Tensors: tensors}, keys)
}

func tensor(name string, bytes int64) agentproto.Tensor {
	return agentproto.Tensor{Name: name, DType: "U8", Shape: []int64{bytes}, Bytes: bytes}
}

func shard(name string, bytes, rank int64) agentproto.Tensor {
	t := tensor(name, bytes)
	t.Global, t.Offset = []int64{64 * bytes}, []int64{rank * bytes}
	return t
}

func idsOf(groups []group) (ids []ckpt.GroupID) {
	for _, g := range groups {
		ids = append(ids, g.id)
	}
	return ids
}

// TestGroupsOfAPart: ranks with the same slices have the same groups, in whatever order they save them.
// A slice with other bytes, or at another place, changes its own group only.
func TestGroupsOfAPart(t *testing.T) {
	const big = 1 << 20
	part := []agentproto.Tensor{tensor("model.layers.0.w", big), tensor("model.layers.1.w", big), tensor("model.embed", big), tensor("optim/layers.0.m", big), shard("model.layers.0.s", big, 3)}
	want := grouped("", part...)
	require.Len(t, want, 4)
	for _, g := range want {
		require.GreaterOrEqual(t, g.bytes, int64(leastGroup))
	}
	require.Equal(t, "bc4248842116b99396bcb257b6b9fcd8", fmt.Sprintf("%x", want[3].id), "all agents of a cluster must name a group alike")
	turned := slices.Clone(part)
	slices.Reverse(turned)
	require.ElementsMatch(t, idsOf(want), idsOf(grouped("", turned...)))

	part[4] = shard("model.layers.0.s", big, 4)
	other := grouped("", part...)
	require.Subset(t, idsOf(other), idsOf(want)[:3], "whole tensors are the same in each rank")
	require.NotContains(t, idsOf(other), want[3].id)
	for _, g := range grouped("other bytes", part...) {
		require.NotContains(t, idsOf(other), g.id)
	}

	experts := func(rank int) []group {
		return grouped("", tensor("model.layers.0.w", big), tensor(fmt.Sprintf("model.layers.0.experts.%d.w", rank), big))
	}
	require.Equal(t, experts(0)[0].id, experts(1)[0].id, "what ranks have besides their experts")
	require.NotEqual(t, experts(0)[1].id, experts(1)[1].id)
}

// TestGroupsAreFew: a part has 16 groups at most, whatever its tensors are called, all bytes are in one of
// them, and groups of less than 1 MiB are left out.
func TestGroupsAreFew(t *testing.T) {
	var part []agentproto.Tensor
	for i := range 100 {
		part = append(part, tensor(fmt.Sprintf("w%d.x", i), 1<<20), shard(fmt.Sprintf("s%d.x", i), 1<<20, 1))
	}
	groups := grouped("", part...)
	require.Len(t, groups, ckpt.MaxClaims)
	seen := map[int]bool{}
	for _, g := range groups {
		for _, i := range g.tensors {
			require.False(t, seen[i])
			seen[i] = true
		}
	}
	require.Len(t, seen, len(part))
	require.Empty(t, grouped("", tensor("small", 1<<20-1), tensor("none.w", 0)))
	require.Empty(t, grouped(""))
}
