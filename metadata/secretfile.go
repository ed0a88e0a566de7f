package metadata

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/morainefs/moraine"
)

// SecretFile is the name of the file with the cluster's secret, in each metadata server's
// directory.
const SecretFile = "SECRET"

// secretMagic starts the file; the ID and the secret in hexadecimal follow.
const secretMagic = "moraine-secret-1"

// DirSecrets keeps the cluster's secret in a file in Dir that only its owner may read.
type DirSecrets struct{ Dir string }

func (d DirSecrets) path() string { return filepath.Join(d.Dir, SecretFile) }

func (d DirSecrets) fail(kind moraine.Kind, err error) error {
	return &moraine.Error{Op: "metadata.secret", Ref: d.path(), Kind: kind, Err: err}
}

// Load implements Secrets. If others may read the file, or it is damaged, the error says what to
// do.
func (d DirSecrets) Load() ([]byte, error) {
	st, err := os.Lstat(d.path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, d.fail(moraine.IOError, err)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return nil, d.fail(moraine.PermissionDenied, fmt.Errorf("other users can read the cluster secret (mode %v): chmod 600 it", st.Mode().Perm()))
	}
	b, err := os.ReadFile(d.path())
	if err != nil {
		return nil, d.fail(moraine.IOError, err)
	}
	fields := strings.Fields(string(b))
	damaged := d.fail(moraine.Corrupt, errors.New("the file is damaged: remove it, so that the server gets the secret from another one; if none has it, the leader makes new keys"))
	if len(fields) != 3 || fields[0] != secretMagic {
		return nil, damaged
	}
	raw, err := hex.DecodeString(fields[2])
	if err != nil || len(raw) != secretLen {
		return nil, damaged
	}
	s := secret(raw)
	if hex.EncodeToString(s.id()) != fields[1] {
		return nil, damaged
	}
	return raw, nil
}

// Store implements Secrets.
func (d DirSecrets) Store(raw []byte) error {
	s := secret(raw)
	next := d.path() + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return d.fail(moraine.IOError, err)
	}
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return d.fail(moraine.IOError, err)
	}
	_, err = fmt.Fprintf(f, "%s %x %x\n", secretMagic, s.id(), raw)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		// COMMIT POINT: the rename, once the directory is synced. Until then the old file is
		// unchanged.
		err = os.Rename(next, d.path())
	}
	if err == nil {
		err = syncDir(d.Dir)
	}
	if err != nil {
		return d.fail(moraine.IOError, err)
	}
	return nil
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
