package client_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

// While others use all memory of a client, a write or a read fails when the client's patience
// ends, with a log line. Once the memory is free, the next one succeeds.
func TestWritesDoNotWaitForMemoryBeyondThePatience(t *testing.T) {
	const patience = 30 * time.Second
	data := bytesOf(7, 3<<20)
	for _, row := range []struct {
		name, resource string
		hold           func(*client.Client) (release func())
		do             func(*cluster, *client.Client) error
	}{
		{"a new file", "memory of writes", client.HoldWrites, func(c *cluster, cl *client.Client) error {
			f, err := cl.Create(c.ctx, "/new", client.CreateOptions{Replace: true})
			require.NoError(t, err)
			_, err = f.Write(data)
			if err != nil {
				f.Abort()
				return err
			}
			_, err = f.Commit(c.ctx)
			return err
		}},
		{"an open file", "memory of writes", client.HoldWrites, func(c *cluster, cl *client.Client) error {
			return withHandle(c, cl, func(h *client.Handle) error {
				_, err := h.WriteAt(c.ctx, data, 0)
				return err
			})
		}},
		{"an append", "memory of writes", client.HoldWrites, func(c *cluster, cl *client.Client) error {
			return withHandle(c, cl, func(h *client.Handle) error {
				_, _, err := h.Append(c.ctx, data)
				return err
			})
		}},
		{"a rebuilding read", "memory of reads", client.HoldReads, func(c *cluster, cl *client.Client) error {
			r, err := cl.OpenFile(c.ctx, "/file")
			require.NoError(t, err)
			defer r.Close() //nolint:errcheck // it was only read
			got := make([]byte, len(data))
			err = r.ReadRange(c.ctx, got, 0)
			require.True(t, err != nil || bytes.Equal(data, got))
			return err
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			inCluster(t, 6, func(c *cluster) {
				var log bytes.Buffer
				cfg, old := littleMemory(), c.Log
				cfg.Patience, cfg.ReadaheadBytes = patience, -1
				c.Log = slog.New(slog.NewTextHandler(&log, nil))
				cl := c.dial("c1", cfg)
				defer cl.Close() //nolint:errcheck // the cluster may be gone
				c.Log = old
				write(t, c, cl, "/file", data, 1<<30, false)
				c.Hosts[0].Kill()
				release := row.hold(cl)
				ended := make(chan error, 1)
				began := time.Now()
				go func() { ended <- row.do(c, cl) }()
				select {
				case err := <-ended:
					require.Error(t, err)
					require.Equal(t, moraine.Timeout, moraine.KindOf(err), err)
				case <-time.After(10 * patience):
					t.Fatalf("it has waited for %v with a patience of %v", time.Since(began), patience)
				}
				require.LessOrEqual(t, time.Since(began), 2*patience)
				require.Equal(t, 1, strings.Count(log.String(), "resource wait exceeded"), log.String())
				require.Contains(t, log.String(), row.resource)
				release()
				require.NoError(t, row.do(c, cl))
			})
		})
	}
}

// withHandle calls do with a handle of a new file.
func withHandle(c *cluster, cl *client.Client, do func(*client.Handle) error) error {
	a, err := cl.Inodes().Create(c.ctx, cl.Root(), "open", client.NodeOptions{Mode: 0o644})
	require.NoError(c.t, err)
	h, err := cl.Inodes().OpenHandle(c.ctx, a.Inode(), client.HandleOptions{})
	require.NoError(c.t, err)
	err = do(h)
	if flushed := h.Close(context.WithoutCancel(c.ctx)); err == nil {
		err = flushed
	}
	return err
}
