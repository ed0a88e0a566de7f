package fuse_test

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// TestOpensSendNoRequestForOrphans: a mount opens and closes a file that nobody removes, and
// sends no request about files without a name for it.
func TestOpensSendNoRequestForOrphans(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	var mu sync.Mutex
	var sent []string
	seen := &counted{see: func(kind string) {
		mu.Lock()
		defer mu.Unlock()
		sent = append(sent, kind)
	}}
	m, other := mount(t, c, "c1", mountOptions{over: seen.over}), mount(t, c, "c2")
	require.NoError(t, os.WriteFile(other.at("file"), []byte("text"), 0o644))
	for range 20 {
		f, err := os.OpenFile(m.at("file"), os.O_RDWR, 0)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	mu.Lock()
	defer mu.Unlock()
	require.NotEmpty(t, sent)
	for _, kind := range []string{"keep", "find_orphans", "release"} {
		require.NotContains(t, sent, kind)
	}
}

// counted calls see with the kind of each request to the metadata service.
type counted struct {
	transport.Dialer
	see func(kind string)
}

func (d *counted) over(under transport.Dialer) transport.Dialer { d.Dialer = under; return d }

func (d *counted) Metadata(addrs []string) transport.Metadata {
	return countedMetadata{d.Dialer.Metadata(addrs), d.see}
}

type countedMetadata struct {
	transport.Metadata
	see func(kind string)
}

func (m countedMetadata) Do(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	m.see(string(wire.Op(req).Name()))
	return m.Metadata.Do(ctx, req)
}
