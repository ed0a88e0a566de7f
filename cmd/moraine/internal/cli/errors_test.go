package cli

import (
	"errors"
	"fmt"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/stretchr/testify/require"
)

func TestErrorsAreOneLineForEachThing(t *testing.T) {
	inner := &moraine.Error{Op: "store.Open", Ref: "/d", Kind: moraine.WrongCluster, Err: errors.New("it belongs\nto another")}
	chain := &moraine.Error{Op: "store.Run", Ref: "/d", Kind: moraine.WrongCluster, Err: errors.Join(inner)}
	require.Equal(t, []string{"/d: wrong cluster: it belongs to another; name the directory and the certificates of one and the same cluster"}, ErrorLines(chain))

	wrapped := fmt.Errorf("%w (make it)", &moraine.Error{Op: "pki.LoadCA", Ref: "/d", Kind: moraine.NotFound})
	require.Equal(t, []string{"/d: not found (make it)"}, ErrorLines(wrapped), "functions have no place in it")
	role := &moraine.Error{Op: "check_chunks", Kind: moraine.PermissionDenied, Err: errors.New(`a certificate of role "client" may not make this request`)}
	require.Equal(t, []string{`check chunks: permission denied: a certificate of role "client" may not make this request; name an admin's certificate by --certs and --identity`}, ErrorLines(role))
	full := &moraine.Error{Kind: moraine.NoSpace, Err: errors.New("the disk of the metadata server is nearly full")}
	require.Equal(t, []string{"no space: the disk of the metadata server is nearly full; make room on that disk, or remove files (`moraine rm`)"}, ErrorLines(full))

	two := errors.Join(&moraine.Error{Op: "client.Stat", Ref: "/a", Kind: moraine.NotFound}, errors.New("b"), errors.New("b"))
	require.Equal(t, []string{"/a: not found", "b"}, ErrorLines(two))

	around := fmt.Errorf("x: %w (%w)", errors.New("y"), errors.New("z"))
	require.Equal(t, []string{"x: y (z)"}, ErrorLines(around))

	require.Equal(t, []string{"rename: /a: no space: the disk is full; make room (`moraine rm`), or add devices"},
		ErrorLines(&moraine.Error{Op: "rename", Ref: "/a", Kind: moraine.NoSpace, Err: errors.New("the disk is full")}))
	require.Equal(t, []string{"no space: map 1024 MiB; give a smaller --memory"},
		ErrorLines(&moraine.Error{Op: "mem.Open", Kind: moraine.NoSpace, Err: errors.New("map 1024 MiB")}), "a disk has nothing to do with it")
}
