package devcluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
)

// Build makes the moraine executable at path: a static one, as shipped. Tests are compiled with cgo, for the race detector. An
// executable with cgo would be linked by the C compiler's linker, and use other
// objects than those of `make build`.
func Build(ctx context.Context, path string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "github.com/morainefs/moraine/cmd/moraine")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	return nil
}
