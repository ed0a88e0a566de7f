package client_test

import (
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// An Abort during the commit of small content that fails leaves no buffer. Inode may be called meanwhile.
func TestAnAbortDuringACommitFreesSmallContent(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		f, err := cl.Create(c.ctx, "/f", client.CreateOptions{})
		require.NoError(t, err)
		_, err = f.Write(bytesOf(1, 1000))
		require.NoError(t, err)
		var once sync.Once
		began, fail := make(chan struct{}), make(chan struct{})
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if req.GetCommit() == nil {
				return nil, nil
			}
			once.Do(func() { close(began) })
			<-fail
			return nil, errKind(moraine.Conflict)
		})
		done := make(chan error, 1)
		go func() {
			_, err := f.Commit(c.ctx)
			done <- err
		}()
		<-began
		aborted := make(chan struct{})
		go func() {
			f.Abort() // waits for the request
			close(aborted)
		}()
		for range 10_000 { // it waits for a mutex, so the clock of the test stands
			runtime.Gosched()
		}
		close(fail)
		require.Error(t, <-done)
		<-aborted
		require.Zero(t, f.Inode())
		require.Zero(t, client.Held(cl))
	})
}

// A file that is written has its number while another goroutine reads it.
func TestInodeOfAFileThatIsBeingMade(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		f, err := cl.Create(c.ctx, "/f", client.CreateOptions{})
		require.NoError(t, err)
		read := make(chan moraine.InodeID)
		go func() {
			for range 1000 {
				f.Inode()
			}
			read <- f.Inode()
		}()
		_, err = f.Write(bytesOf(1, 1<<20))
		require.NoError(t, err)
		seen := <-read
		res, err := f.Commit(c.ctx)
		require.NoError(t, err)
		require.NotZero(t, f.Inode())
		require.Equal(t, res.Attr.Inode(), f.Inode())
		require.True(t, seen == 0 || seen == f.Inode())
	})
}
