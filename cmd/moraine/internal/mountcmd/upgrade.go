package mountcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
)

// upgrade is a request to go on with a daemon of another program.
type upgrade struct {
	binary *os.File
	result chan error
}

// drainLimit is longer than a daemon takes to commit what was written, or to say that it cannot.
const drainLimit = time.Minute

// upgradeTo replaces the daemon. It returns the one that serves from here on; nil: none could begin.
func (s *supervisor) upgradeTo(ctx context.Context, old *child, u *upgrade) (*child, error) {
	next, err := s.prepare(u.binary)
	if err != nil {
		return old, errors.Join(fmt.Errorf("the new version did not start, and the old one goes on: %w", err), u.binary.Close())
	}
	if err := s.drain(old); err != nil {
		_ = next.cmd.Process.Kill()
		return old, errors.Join(fmt.Errorf("the old version goes on: it could not commit what was written: %w", err), s.wait(next), next.kernel.Close(), u.binary.Close())
	}
	s.bury(old)
	if err := s.begin(ctx, next); err != nil {
		back, berr := s.restart(ctx, s.binary, time.Now())
		err = fmt.Errorf("the new version could not serve (%w)", err)
		if back != nil {
			return back, errors.Join(fmt.Errorf("%w: the old version serves again", err), u.binary.Close())
		}
		return nil, errors.Join(err, berr)
	}
	_ = s.binary.Close()
	s.binary = u.binary
	s.log.Info("the mount has a new daemon", "dir", s.dir, "pid", next.pid())
	return next, nil
}

// drain has a daemon commit and end. After an error it goes on.
func (s *supervisor) drain(c *child) error {
	if err := c.link.send(message{Verb: drain}); err != nil {
		return nil // it is dead: the next one goes on as after a crash
	}
	for {
		select {
		case m, alive := <-c.said:
			switch {
			case !alive:
				return nil
			case m.Verb == busy:
				return m.err()
			}
		case <-time.After(drainLimit):
			_ = c.cmd.Process.Kill() // as after a crash
		}
	}
}

// supervisorFile is the socket of the supervisor of the mount on dir.
func supervisorFile(base, dir string) string { return controlFile(base, dir) + "up" }

// listen answers at the supervisor's socket until the caller calls end.
func (s *supervisor) listen() (end func(), err error) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /upgrade", s.serveUpgrade)
	return listenBeside(supervisorFile, s.dir, mux)
}

// upgraded is the answer to a request for an upgrade.
type upgraded struct {
	Error string `json:"error,omitempty"`
}

func (s *supervisor) serveUpgrade(w http.ResponseWriter, r *http.Request) {
	f, err := os.Open(r.FormValue("binary"))
	if err == nil {
		u := &upgrade{binary: f, result: make(chan error, 1)}
		select {
		case s.upgrades <- u:
			err = <-u.result
		case <-r.Context().Done():
			err = errors.Join(r.Context().Err(), f.Close())
		}
	}
	_ = json.NewEncoder(w).Encode(upgraded{Error: failure(busy, err).Error})
}

// upgradeMount has the mount on a directory served by this program.
func upgradeMount(ctx context.Context, env *cli.Env, arg string) error {
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	d, err := findProcess(arg, supervisorFile)
	if err != nil {
		return err
	}
	body, err := d.send(ctx, http.MethodPost, "/upgrade", url.Values{"binary": {binary}})
	if err != nil {
		return err
	}
	defer body.Close()
	var answer upgraded
	if err := json.NewDecoder(io.LimitReader(body, maxStatus)).Decode(&answer); err != nil {
		return err
	}
	if answer.Error != "" {
		return fmt.Errorf("%s: %s", d.dir, answer.Error)
	}
	st, err := findProcess(arg, controlFile)
	if err != nil {
		return err
	}
	now, err := st.status(ctx)
	if err != nil {
		return err
	}
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, map[string]any{"dir": d.dir, "pid": now.Pid, "binary": filepath.Clean(binary)})
	}
	env.Note("%s is served by process %d of %s.", d.dir, now.Pid, binary)
	return nil
}
