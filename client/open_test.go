package client_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

// TestOpenNamesWhatIsMissing: the error says which option to set, before anything is dialed.
func TestOpenNamesWhatIsMissing(t *testing.T) {
	two := t.TempDir()
	for _, name := range []string{"a.crt", "b.crt", "ca.crt"} {
		require.NoError(t, os.WriteFile(filepath.Join(two, name), nil, 0o600))
	}
	for _, c := range []struct {
		address string
		opts    client.Options
		kind    moraine.Kind
		says    string
	}{
		{"host1", client.Options{}, moraine.InvalidArgument, "moraine://HOST/PATH"},
		{"moraine:///a", client.Options{Certs: two}, moraine.InvalidArgument, "MORAINE_ENDPOINT"},
		{"moraine://h/a", client.Options{}, moraine.InvalidArgument, "MORAINE_CERTS"},
		{"moraine://h/a", client.Options{Certs: two}, moraine.InvalidArgument, "MORAINE_IDENTITY"},
		{"moraine://h/a", client.Options{Certs: filepath.Join(two, "none")}, moraine.NotFound, "none"},
		{"moraine://h/a", client.Options{Certs: two, Identity: "c"}, moraine.NotFound, "c.crt"},
		{"moraine://h/a", client.Options{Certs: two, Mode: "open"}, moraine.InvalidArgument, "client.Secure"},
		{"moraine://h/a", client.Options{Certs: two, Config: client.Config{Scope: "/b"}}, moraine.InvalidArgument, "in the address"},
	} {
		_, err := client.Open(t.Context(), c.address, c.opts)
		require.Equal(t, c.kind, moraine.KindOf(err), "%v", err)
		require.ErrorContains(t, err, c.says)
	}
}
