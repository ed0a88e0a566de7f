package cli

import (
	"errors"
	"fmt"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/stretchr/testify/require"
)

// TestErrorsNameWhatTheUserWrote: the error of a command with an address names neither
// inodes nor paths within the cluster.
func TestErrorsNameWhatTheUserWrote(t *testing.T) {
	l := Location{Remote: true, Hosts: "h1", Path: "/runs/a"}
	for _, ref := range []string{"/runs/a", "a", moraine.InodeID(7).String()} {
		inner := &moraine.Error{Op: "resolve step", Ref: ref, Kind: moraine.NotFound, Err: errors.New("no step 7")}
		err := Named(&moraine.Error{Op: "client.Resolve", Ref: ref, Kind: moraine.NotFound, Err: inner}, l, 7)
		require.Equal(t, []string{"moraine://h1/runs/a: resolve step: not found: no step 7"}, ErrorLines(err))
		require.ErrorIs(t, err, moraine.NotFound)
	}
	other := &moraine.Error{Ref: "/runs/b", Kind: moraine.NotFound}
	require.Equal(t, error(other), errors.Unwrap(Named(fmt.Errorf("x: %w", other), l)))
	require.Equal(t, []string{"/runs/b: not found"}, ErrorLines(Named(other, l)))
	require.NoError(t, Named(nil, l))
}
