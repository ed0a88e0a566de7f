package retry

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
)

func TestErrorKinds(t *testing.T) {
	deep := fmt.Errorf("x: %w", &moraine.Error{Op: "put", Ref: "dev", Kind: moraine.NoSpace, Err: errors.New("full")})
	require.Equal(t, "client.Write: /f: no space: full", Wrap("client.Write", "/f", deep).Error())
	require.ErrorIs(t, Wrap("a", "b", context.Canceled), moraine.Canceled)
	require.ErrorIs(t, Wrap("a", "b", context.DeadlineExceeded), moraine.Timeout)
	require.NoError(t, Wrap("a", "b", nil))
	require.True(t, IsTransient(context.DeadlineExceeded))
	require.False(t, IsTransient(deep))
}
