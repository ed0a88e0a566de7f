package client

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
)

// noServers is a network without servers.
type noServers struct{ transport.Dialer }

// waiting is a client with a patience of 30 s, that reports to log. Nothing of it runs.
func waiting(t *testing.T, log *bytes.Buffer) *Client {
	cfg, deps := Config{Metadata: [][]string{{"a:1"}}, Patience: 30 * time.Second}, Deps{Dialer: noServers{}, Log: slog.New(slog.NewTextHandler(log, nil))}
	cfg.setDefaults()
	deps.setDefaults()
	require.NoError(t, cfg.validate())
	return newClient(cfg, deps)
}

// A block that is being read ahead, and a commit in the background, are not waited for without end,
// whatever they hang in. The log names what did not come.
func TestBackgroundWorkIsNotWaitedForBeyondThePatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := waiting(t, &log)
		a := &readahead{r: &Reader{c: c}}
		began := time.Now()
		require.False(t, a.await(context.Background(), &aheadBlock{ready: make(chan struct{})}), "the caller reads the bytes itself")
		require.Equal(t, 30*time.Second, time.Since(began))
		require.Contains(t, log.String(), `msg="resource wait exceeded" resource="block that is read ahead"`)

		ct := &content{committer: committer{fileState: fileState{c: c}, seq: 1, changed: make(chan struct{}), queue: []*batch{{seq: 1}}}}
		stop := make(chan struct{})
		go func() { // another batch got further: the wait begins again
			time.Sleep(50 * time.Second)
			ct.mu.Lock()
			ct.signal()
			ct.mu.Unlock()
			close(stop)
		}()
		began = time.Now()
		err := ct.awaitCommitted(context.Background())
		require.Equal(t, moraine.Timeout, moraine.KindOf(err), err)
		require.Equal(t, 110*time.Second, time.Since(began))
		require.Contains(t, log.String(), `msg="resource wait exceeded" resource="commits of a file"`)
		<-stop

		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		require.Equal(t, moraine.Canceled, moraine.KindOf(ct.awaitCommitted(ctx)))
	})
}
