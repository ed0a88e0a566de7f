package client_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

// TestParseAddress: each form of an address, and those that are no address in a cluster.
func TestParseAddress(t *testing.T) {
	for s, want := range map[string]client.Address{
		"moraine://h1,h2:1/a/b":  {Hosts: "h1,h2:1", Path: "/a/b"},
		"moraine:///a/../b/":     {Path: "/b", Dir: true},
		"moraine://h1":           {Hosts: "h1", Path: "/", Dir: true},
		"moraine://[::1]:7/x//y": {Hosts: "[::1]:7", Path: "/x/y"},
		"moraine:///":            {Path: "/", Dir: true},
	} {
		got, err := client.ParseAddress(s)
		require.NoError(t, err, s)
		require.Equal(t, want, got, s)
	}
	for s, says := range map[string]string{"": "moraine://HOST/PATH", "/a": "moraine://HOST/PATH", "s3://b/k": "moraine://HOST/PATH", "moraine:/a/b": "moraine:///a/b"} {
		_, err := client.ParseAddress(s)
		require.ErrorContains(t, err, says, s)
	}
}

// TestSplitEndpoint: hosts with and without ports, spaces, and an address.
func TestSplitEndpoint(t *testing.T) {
	require.Equal(t, [][]string{{"h1:7400"}, {"h2:1"}, {"[::1]:7400"}, {"[::2]:5"}, {"unix:/run/m"}},
		client.SplitEndpoint("moraine://h1, h2:1,::1,[::2]:5,,unix:/run/m/"))
	require.Empty(t, client.SplitEndpoint(" , "))
}

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
