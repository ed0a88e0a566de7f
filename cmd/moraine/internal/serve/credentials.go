package serve

import (
	"bufio"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
)

// rootKey is the one account of an S3 endpoint.
type rootKey struct{ Access, Secret string }

// ReadCredentials reads a root key from a file in the format of AWS clients; the first
// profile counts. It refuses a file that others can read.
func ReadCredentials(file string) (rootKey, error) {
	f, err := os.Open(file)
	if err != nil {
		return rootKey{}, fmt.Errorf("--credentials: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return rootKey{}, fmt.Errorf("--credentials: %w", err)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return rootKey{}, fmt.Errorf("--credentials %s: other users can read it: run `chmod 600 %s`, "+
			"and change the key", file, file)
	}
	var key rootKey
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), "=")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(name) {
		case "aws_access_key_id":
			key.Access = value
		case "aws_secret_access_key":
			key.Secret = value
		}
		if key.Access != "" && key.Secret != "" {
			return key, nil
		}
	}
	return rootKey{}, cli.UsageError("--credentials %s: write aws_access_key_id = ... and aws_secret_access_key = ... on two lines", file)
}

// MakeCredentials reads the root key from a file. Where there is no such file it makes one
// with a random key.
func MakeCredentials(file string) (rootKey, error) {
	if key, err := ReadCredentials(file); !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	var random [40]byte
	if _, err := rand.Read(random[:]); err != nil {
		return rootKey{}, err
	}
	key := rootKey{Access: "MORAINE" + strings.ToUpper(fmt.Sprintf("%x", random[:6])), Secret: base64.RawURLEncoding.EncodeToString(random[10:])}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return rootKey{}, err
	}
	text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", key.Access, key.Secret)
	return key, os.WriteFile(file, []byte(text), 0o600)
}
