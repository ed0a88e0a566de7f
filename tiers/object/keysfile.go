package object

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/morainefs/moraine"
)

// Keys are the credentials of one user of a store.
type Keys struct{ Access, Secret string }

// LoadKeys reads a file of keys (two lines). If the file is missing, LoadKeys makes
// it with random keys, readable only by its owner. It refuses a file that others
// may read (PermissionDenied), and one of another form (Corrupt).
func LoadKeys(file string) (Keys, error) {
	if err := makeKeys(file); err != nil {
		return Keys{}, err
	}
	info, err := os.Stat(file)
	if err != nil {
		return Keys{}, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return Keys{}, &moraine.Error{Op: "object-server", Ref: file, Kind: moraine.PermissionDenied,
			Err: errors.New("other users may read the keys file: chmod 600 it")}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return Keys{}, err
	}
	lines := strings.Fields(string(data))
	if len(lines) != 2 {
		return Keys{}, &moraine.Error{Op: "object-server", Ref: file, Kind: moraine.Corrupt,
			Err: errors.New("keys file must hold two lines: the access key and the secret key")}
	}
	return Keys{lines[0], lines[1]}, nil
}

// makeKeys writes the file under another name and links it. A reader never sees
// half of it, and of two concurrent callers one wins.
func makeKeys(file string) error {
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	random := make([]byte, 30)
	if _, err := rand.Read(random); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".keys-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = fmt.Fprintf(f, "MORAINE%s\n%s\n", strings.ToUpper(hex.EncodeToString(random[:6])), hex.EncodeToString(random[6:]))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), file); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
