package servercmd

import (
	"errors"
	"strings"
	"testing"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/vfs"
)

// The error of a server on a full disk says what to do. It does not mention disks where
// there is room.
func TestFullMetadataDiskSaysTheRemedy(t *testing.T) {
	fs := vfs.NewMem(1)
	cause := errors.New("state: MANIFEST flush failed")
	if err := withRemedy(fs, "/", cause); err != cause {
		t.Errorf("room enough: %v", err)
	}
	fs.SetCapacity(1 << 20)
	err := withRemedy(fs, "/", cause)
	if lines := cli.ErrorLines(err); len(lines) != 2 || lines[0] != cause.Error() || !strings.Contains(lines[1], "make room there, 200 MiB") {
		t.Errorf("%q", lines)
	}
	if err := withRemedy(fs, "/", nil); err != nil {
		t.Errorf("it ended well: %v", err)
	}
}
