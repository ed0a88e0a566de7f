package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAnS3KeyThatOthersReadIsRefused: the private key of an S3 endpoint needs the same mode
// as that of an authority and of an identity.
func TestAnS3KeyThatOthersReadIsRefused(t *testing.T) {
	key := filepath.Join(t.TempDir(), "s3.key")
	require.NoError(t, os.WriteFile(key, nil, 0o600))
	args := []string{"s3", "--access-key", "a", "--secret-key", "b", "--listen", "127.0.0.1:0", "--cert", "s3.crt", "--key", key}
	for mode, refused := range map[os.FileMode]bool{0o600: false, 0o640: false, 0o644: true, 0o660: true, 0o604: true} {
		require.NoError(t, os.Chmod(key, mode))
		_, stderr, code := invoke(t, args...)
		require.NotZero(t, code, "it names no cluster")
		if refused {
			require.Contains(t, stderr, key, mode)
			require.Contains(t, stderr, "chmod 600", mode)
			data := filepath.Join(t.TempDir(), "data")
			_, stderr, code = invoke(t, "standalone", "--data", data, "--s3-cert", "s3.crt", "--s3-key", key)
			require.NotZero(t, code)
			require.Contains(t, stderr, "chmod 600", mode)
			require.NoDirExists(t, data)
		} else {
			require.NotContains(t, stderr, "chmod", mode)
		}
	}
}
