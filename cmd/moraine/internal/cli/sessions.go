package cli

import (
	"context"
	"errors"

	"github.com/morainefs/moraine/client"
)

// Sessions opens one connection for each cluster that a command line names.
type Sessions struct {
	env    *Env
	Config client.Config
	open   map[string]*Connection
}

// Sessions returns the connections of one command line, of which none is open yet.
func (env *Env) Sessions() *Sessions { return &Sessions{env: env, open: map[string]*Connection{}} }

// Of returns the connection to l's cluster.
func (s *Sessions) Of(ctx context.Context, l Location) (*Connection, error) {
	if c, ok := s.open[l.Hosts]; ok {
		return c, nil
	}
	c, err := s.env.DialHosts(ctx, l.Hosts, s.Config)
	if err == nil {
		s.open[l.Hosts] = c
	}
	return c, err
}

// Close ends all connections.
func (s *Sessions) Close() {
	for _, c := range s.open {
		_ = c.Close()
	}
}

// Each calls fn for every argument, in order, with its connection where it is in a cluster
// (c is nil for a local path). It continues after a failure, and returns all errors
// together.
func (env *Env) Each(ctx context.Context, args []string, parse func(string) (Location, error), fn func(c *Connection, l Location) error) error {
	locations := make([]Location, len(args))
	for i, arg := range args {
		l, err := parse(arg)
		if err != nil {
			return err
		}
		locations[i] = l
	}
	s := env.Sessions()
	defer s.Close()
	var errs []error
	for _, l := range locations {
		var c *Connection
		if l.Remote {
			var err error
			if c, err = s.Of(ctx, l); err != nil {
				return err
			}
		}
		if err := fn(c, l); err != nil {
			errs = append(errs, Named(err, l))
		}
	}
	return errors.Join(errs...)
}
