package serve

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestExpiryIsLogged: a server logs a line from 30 days before its certificate expires.
func TestExpiryIsLogged(t *testing.T) {
	now := time.Now()
	for days, level := range map[int]string{31: "", 29: "WARN", 6: "ERROR", -1: "ERROR"} {
		var out bytes.Buffer
		warnOfExpiry(slog.New(slog.NewTextHandler(&out, nil)), "n1", now.Add(time.Duration(days)*24*time.Hour), now)
		if level == "" {
			require.Empty(t, out.String())
			continue
		}
		require.Contains(t, out.String(), "level="+level)
	}
}
