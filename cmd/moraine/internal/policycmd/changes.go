package policycmd

import (
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
)

// changes are the flags of `policy set`: what to change of a policy. "inherit" removes a part.
type changes struct{ flush, scheme, foreign, trash string }

// parse returns what the given flags change.
func (c *changes) parse(given func(flag string) bool) (func(*client.Policy), error) {
	var all []func(*client.Policy)
	for _, f := range []struct {
		name  string
		parse func() (func(*client.Policy), error)
	}{{"flush", c.parseFlush}, {"scheme", c.parseScheme}, {"foreign", c.parseForeign}, {"trash", c.parseTrash}} {
		if !given(f.name) {
			continue
		}
		change, err := f.parse()
		if err != nil {
			return nil, err
		}
		all = append(all, change)
	}
	if len(all) == 0 {
		return nil, cli.UsageError("policy set: no change is given: give --flush, --scheme, --foreign or --trash " +
			"(\"inherit\" removes one)")
	}
	return func(p *client.Policy) {
		for _, change := range all {
			change(p)
		}
	}, nil
}

func (c *changes) parseFlush() (func(*client.Policy), error) {
	for value, name := range flushPolicies {
		if name == c.flush {
			return func(p *client.Policy) { p.Flush = value }, nil
		}
	}
	return nil, cli.UsageError("--flush %q: write never, on-commit or inherit", c.flush)
}

func (c *changes) parseScheme() (func(*client.Policy), error) {
	var scheme moraine.Scheme
	if c.scheme != "inherit" {
		cfg, err := cli.SchemeConfig(c.scheme)
		if err == nil && !cfg.Scheme.Valid() {
			err = cli.UsageError("--scheme %q: write 4+2, 8+3, x3 or inherit", c.scheme)
		}
		if err != nil {
			return nil, err
		}
		scheme = cfg.Scheme
	}
	return func(p *client.Policy) { p.Scheme = scheme }, nil
}

func (c *changes) parseForeign() (func(*client.Policy), error) {
	value, known := foreignPolicies[c.foreign]
	if !known {
		return nil, cli.UsageError("--foreign %q: write refuse, overwrite or inherit", c.foreign)
	}
	return func(p *client.Policy) { p.Foreign = value }, nil
}

func (c *changes) parseTrash() (func(*client.Policy), error) {
	keep := time.Duration(0)
	switch c.trash {
	case "inherit":
	case "off":
		keep = client.TrashOff
	default:
		var err error
		if keep, err = time.ParseDuration(c.trash); err != nil || keep < time.Minute {
			return nil, cli.UsageError("--trash %q: write a time of a minute or more, such as 24h, or off or inherit", c.trash)
		}
	}
	return func(p *client.Policy) { p.Trash = keep }, nil
}

var foreignPolicies = map[string]client.ForeignPolicy{
	"inherit":   client.ForeignInherit,
	"refuse":    client.ForeignRefuse,
	"overwrite": client.ForeignOverwrite,
}

var flushPolicies = map[client.FlushPolicy]string{
	client.FlushInherit:  "inherit",
	client.FlushNever:    "never",
	client.FlushOnCommit: "on-commit",
}
