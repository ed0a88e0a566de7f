package demo

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

//go:embed requirements.txt
var requirements []byte

//go:embed read_part.py
var readPart []byte

// python is a virtual environment with the stock readers of checkpoints.
type python struct{ dir string }

// makePython makes the environment in a directory, unless it exists, with packages
// from pip's configured source.
func makePython(ctx context.Context, dir string) (*python, error) {
	p := &python{dir: dir}
	made := filepath.Join(dir, "made")
	if have, err := os.ReadFile(made); err == nil && bytes.Equal(have, requirements) {
		return p, nil
	}
	if out, err := child(ctx, "python3", "-m", "venv", "--clear", dir); err != nil {
		return nil, fmt.Errorf("step 6 needs Python 3 with its venv module (Debian: python3-venv; `make demo` installs it there, as root): python3 -m venv: %w\n%s", err, out)
	}
	list := filepath.Join(dir, "requirements.txt")
	if err := os.WriteFile(list, requirements, 0o644); err != nil {
		return nil, err
	}
	if out, err := child(ctx, filepath.Join(dir, "bin", "pip"), "install", "--quiet", "--disable-pip-version-check", "-r", list); err != nil {
		return nil, fmt.Errorf("step 6 needs the Python packages of %s, from pip's configured source: %w\n%s", list, err, out)
	}
	return p, os.WriteFile(made, requirements, 0o644)
}

// tensorDigests has the safetensors package read a file, and returns the SHA-256 of
// each tensor.
func (p *python) tensorDigests(ctx context.Context, file string) (map[string]string, error) {
	script := filepath.Join(p.dir, "read_part.py")
	if err := os.WriteFile(script, readPart, 0o644); err != nil {
		return nil, err
	}
	out, err := child(ctx, filepath.Join(p.dir, "bin", "python"), script, file)
	if err != nil {
		return nil, fmt.Errorf("safetensors of Python: %w\n%s", err, out)
	}
	digests := map[string]string{}
	for lines := json.NewDecoder(bytes.NewReader(out)); lines.More(); {
		var t struct{ Name, SHA256 string }
		if err := lines.Decode(&t); err != nil {
			return nil, fmt.Errorf("%w in %q", err, out)
		}
		digests[t.Name] = t.SHA256
	}
	return digests, nil
}
