package cli

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestABarThatEndsAtOnce: a bar ends although its work was done before it was shown for the
// first time. With one processor that is always so.
func TestABarThatEndsAtOnce(t *testing.T) {
	ptm, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	defer ptm.Close()
	require.NoError(t, unix.IoctlSetPointerInt(int(ptm.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(ptm.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	pts, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	defer pts.Close()
	go io.Copy(io.Discard, ptm) //nolint:errcheck // it ends with the terminal
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for range 20 {
		env := &Env{Err: pts}
		b := env.StartBar("saved", 10)
		require.NotNil(t, b)
		b.Add(10)
		b.Finish(nil)
	}
}
