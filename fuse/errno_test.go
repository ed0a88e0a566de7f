package fuse

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/stretchr/testify/require"
)

// Every kind of error has an explicit errno; none is success.
func TestErrnos(t *testing.T) {
	n := 0
	for k := moraine.Kind(0); k.String() != "unknown error"; k++ {
		n++
		errno, ok := errnos[k]
		require.True(t, ok, "kind %q has no errno", k)
		require.NotZero(t, errno)
		require.Equal(t, int32(errno), int32(status(&moraine.Error{Kind: k})))
		require.Equal(t, int32(errno), int32(status(fmt.Errorf("around: %w", &moraine.Error{Kind: k}))))
	}
	require.Len(t, errnos, n)
	require.Equal(t, int32(syscall.EIO), int32(status(errors.New("something"))))
	require.Equal(t, int32(syscall.ESTALE), int32(nodeStatus(moraine.NotFound)))
	require.Zero(t, nodeStatus(nil))
}
