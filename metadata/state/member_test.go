package state_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/statepb"
)

// A metadata server's id is good for one directory, for ever.
func TestAMemberHasOneDirectory(t *testing.T) {
	b := newBench(t)
	set := func(id string, dir moraine.UUID) string {
		return kind(b.apply(&statepb.Command{Op: &statepb.Command_SetMember{SetMember: &statepb.SetMember{Id: id, Directory: dir[:]}}}).Response)
	}
	_, known, err := b.m.Member(b.kv, "m1")
	require.NoError(t, err)
	require.False(t, known)
	require.Equal(t, "ok", set("m1", moraine.UUID{1}))
	require.Equal(t, "ok", set("m1", moraine.UUID{1}))
	require.Equal(t, "conflict", set("m1", moraine.UUID{2}))
	require.Equal(t, "ok", set("m2", moraine.UUID{2}))
	require.Equal(t, "invalid argument", set("", moraine.UUID{2}))
	dir, known, err := b.m.Member(b.kv, "m1")
	require.NoError(t, err)
	require.True(t, known)
	require.Equal(t, moraine.UUID{1}, dir)
	b.check()
}
