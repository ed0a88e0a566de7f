package devcmd

import (
	"testing"

	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/stretchr/testify/require"
)

func TestATierOfTheirOwn(t *testing.T) {
	var cfg devcluster.Config
	require.NoError(t, devTier{}.apply(&cfg))
	require.True(t, cfg.ObjectServer)
	cfg = devcluster.Config{}
	require.NoError(t, devTier{bucket: "s3://b/p", endpoint: "http://h"}.apply(&cfg))
	require.False(t, cfg.ObjectServer)
	require.Equal(t, []string{"--bucket", "s3://b/p", "--bucket-endpoint", "http://h"}, cfg.ChunkserverArgs)
	cfg = devcluster.Config{}
	require.NoError(t, devTier{none: true}.apply(&cfg))
	require.False(t, cfg.ObjectServer)
}
