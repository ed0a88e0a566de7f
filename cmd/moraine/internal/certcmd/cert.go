// Package certcmd has the commands for certificates: cert init, issue, renew, show, revoke.
//
// One path through it: `moraine cert issue` -> package transport/pki signs with the authority
// of the directory -> printCertificates shows what was made.
package certcmd

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/spf13/cobra"
)

// Certificate is what `cert` prints of a certificate.
type Certificate struct {
	Name     string    `json:"name"`
	Role     string    `json:"role"`
	Cluster  string    `json:"cluster"`
	Scope    string    `json:"scope"`
	ReadOnly bool      `json:"read_only"`
	Squash   bool      `json:"squash"`
	From     time.Time `json:"valid_from"`
	Expires  time.Time `json:"expires"`
	Expired  bool      `json:"expired"`
	// Serial and Key name the certificate for "cert revoke"; "cert show" has them.
	Serial string `json:"serial,omitempty"`
	Key    string `json:"key,omitempty"`
}

// until says when a certificate expires, or that it has, or that it is not valid yet.
func (i Certificate) until() string {
	day := i.Expires.Format(time.DateOnly)
	switch {
	case i.Expired:
		return "EXPIRED on " + day
	case time.Now().Before(i.From):
		return fmt.Sprintf("%s, NOT VALID before %s: check the clocks", day, i.From.UTC().Format("2006-01-02 15:04 MST"))
	}
	return day
}

func describe(c pki.Claims, from, expires time.Time) Certificate {
	return Certificate{
		Name: c.Node, Role: string(c.Role), Cluster: c.Cluster.String(), Scope: c.Scope,
		ReadOnly: c.ReadOnly, Squash: c.Squash, From: from, Expires: expires, Expired: time.Now().After(expires),
	}
}

func printCertificates(env *cli.Env, infos ...Certificate) error {
	return cli.List(env, infos, table.Row{"name", "role", "scope", "read only", "root squashed", "expires"}, func(i Certificate) table.Row {
		return table.Row{i.Name, i.Role, i.Scope, i.ReadOnly, i.Squash, i.until()}
	})
}

// NewCertCommand returns `moraine cert`.
func NewCertCommand(env *cli.Env) *cobra.Command {
	return cli.Parent(&cobra.Command{
		Use:     "cert",
		GroupID: cli.GroupCluster,
		Short:   "Make the cluster's authority and certificates for nodes, clients and admins",
		Long: `Every part of a cluster proves its identity with a certificate of the cluster's own
authority. "cert init" makes the authority once. Keep its ca.key away from the nodes.
"cert issue" makes a certificate for a node or a user. Copy ca.crt, NAME.crt and NAME.key
to the machine that uses it, and name that directory with --certs. A program loads a
replaced certificate without a restart.`,
		Example: `  moraine cert init ./ca
  moraine cert issue ./ca metadata m1
  moraine cert issue ./ca chunkserver n1
  moraine cert issue ./ca client alice --scope /team-a --read-only`,
	}, newCertInitCommand(env), newCertIssueCommand(env), newCertRenewCommand(env), newCertShowCommand(env), newCertRevokeCommand(env))
}

func newCertInitCommand(env *cli.Env) *cobra.Command {
	var days int
	cmd := &cobra.Command{
		Use:   "init DIR",
		Short: "Make a cluster's identity and its certificate authority in DIR",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if days < 1 {
				return cli.UsageError("--days %d: write a number of days, 1 or more", days)
			}
			var cluster moraine.UUID
			if _, err := rand.Read(cluster[:]); err != nil {
				return err
			}
			ca, err := pki.NewCA(cluster, time.Now(), time.Duration(days)*24*time.Hour)
			if err != nil {
				return err
			}
			if err := ca.Save(args[0]); err != nil {
				return err
			}
			if env.Global.JSON {
				return cli.PrintJSON(env.Out, map[string]string{"cluster": cluster.String(), "directory": args[0]})
			}
			env.Note("cluster %s: authority in %s (ca.crt goes to every node; keep ca.key to yourself)", cluster, args[0])
			return nil
		},
	}
	cmd.Flags().IntVar(&days, "days", 3650, "how long the authority is valid")
	return cmd
}

func newCertIssueCommand(env *cli.Env) *cobra.Command {
	var (
		r     pki.Request
		days  int
		out   string
		force bool
	)
	cmd := &cobra.Command{
		Use:   "issue DIR ROLE NAME",
		Short: "Issue a certificate for NAME: metadata, chunkserver, gateway, client or admin",
		Long: `Issue NAME.crt and NAME.key with the authority in DIR. ROLE says what the holder
may do:

  metadata, chunkserver  run a server; NAME is its node id
  gateway                run an S3 endpoint
  client                 use files, only below --scope where it is given
  admin                  change the cluster

The command replaces no certificate. With --force it does; the former certificate stays
valid until it expires or is revoked.`,
		Args: cobra.ExactArgs(3),
		RunE: func(_ *cobra.Command, args []string) error {
			r.Role, r.Node = pki.Role(args[1]), args[2]
			if !r.Role.Valid() {
				return cli.UsageError("role %q: write metadata, chunkserver, gateway, client or admin", args[1])
			}
			if days < 1 {
				return cli.UsageError("--days %d: write a number of days, 1 or more", days)
			}
			ca, err := pki.LoadCA(args[0])
			if err != nil {
				return fmt.Errorf("%w (make the authority first: moraine cert init %s)", err, args[0])
			}
			r.Now, r.TTL = time.Now(), time.Duration(days)*24*time.Hour
			if err := ca.CheckClock(r.Now); err != nil {
				return err
			}
			cert, err := ca.Issue(r)
			if err != nil {
				return err
			}
			if out == "" {
				out = args[0]
			}
			if err := saveIssued(env, cert, out, force); err != nil {
				return err
			}
			return printCertificates(env, describe(cert.Claims, cert.NotBefore, cert.NotAfter))
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.Scope, "scope", "/", "directory to which the certificate confines its holder")
	f.BoolVar(&r.ReadOnly, "read-only", false, "the holder may change nothing")
	f.BoolVar(&r.NoSquash, "no-squash", false, "root stays root (otherwise root becomes nobody)")
	f.StringSliceVar(&r.Hosts, "host", nil, "name or IP address to put in the certificate, for tools "+
		"that check it")
	f.IntVar(&days, "days", 365, "how long the certificate is valid")
	f.StringVar(&out, "out", "", "directory for NAME.crt, NAME.key and ca.crt (default: DIR)")
	f.BoolVar(&force, "force", false, "replace an existing certificate of NAME, and its key")
	return cmd
}

// saveIssued writes a certificate into dir. It replaces another one of that name only with force,
// and then names what stays valid.
func saveIssued(env *cli.Env, cert *pki.Certificate, dir string, force bool) error {
	name := cert.Claims.Node
	if !force {
		err := cert.SaveNew(dir, name)
		if errors.Is(err, moraine.Exists) {
			return fmt.Errorf("%s already has a certificate or key of %s: run `moraine cert renew`, "+
				"give --out for another directory, or --force to replace it", dir, name)
		}
		return err
	}
	former := ""
	if id, err := pki.LoadIdentity(pki.FilesIn(dir, name)); err == nil && id.Check(time.Now()) == nil { // others open nothing
		held, _, _ := id.Current()
		former = pki.SerialOf(held.Leaf)
	}
	if err := cert.Save(dir, name); err != nil {
		return err
	}
	if former != "" {
		env.Note("the former certificate stays valid: `moraine cert revoke --serial %s` ends that", former)
	}
	return nil
}

func newCertRenewCommand(env *cli.Env) *cobra.Command {
	var days int
	var certs string
	cmd := &cobra.Command{
		Use:   "renew DIR NAME...",
		Short: "Renew certificates, including expired ones",
		Long: `Issue a new certificate for the key in NAME.key, with the authority in DIR. Role, scope
and all other properties of NAME.crt stay the same. An authority in DIR/ca.crt must have
issued it. Both files are in --in; the command replaces NAME.crt there. A program that uses
it loads it without a restart.`,
		Example: "  moraine cert renew ./ca n1 --in /etc/moraine/certs",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			if days < 1 {
				return cli.UsageError("--days %d: write a number of days, 1 or more", days)
			}
			ca, err := pki.LoadCA(args[0])
			if err != nil {
				return err
			}
			if err := ca.CheckClock(time.Now()); err != nil {
				return err
			}
			in := cmp.Or(certs, args[0])
			var infos []Certificate
			for _, name := range args[1:] {
				id, err := pki.LoadIdentity(pki.FilesIn(in, name))
				if err != nil {
					return err
				}
				cert, err := ca.Renew(id, time.Now(), time.Duration(days)*24*time.Hour)
				if err != nil {
					return err
				}
				if err := cert.Save(in, name); err != nil {
					return err
				}
				infos = append(infos, describe(cert.Claims, cert.NotBefore, cert.NotAfter))
			}
			return printCertificates(env, infos...)
		},
	}
	cmd.Flags().IntVar(&days, "days", 365, "how long the certificates are valid")
	cmd.Flags().StringVar(&certs, "in", "", "directory of NAME.crt and NAME.key (default: DIR)")
	return cmd
}

func newCertShowCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "show DIR [NAME...]",
		Short: "Show the holder and the expiry of certificates; without NAME, of all in DIR",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			names := args[1:]
			if len(names) == 0 {
				var err error
				if names, err = pki.Names(args[0]); err != nil {
					return err
				}
				if len(names) == 0 {
					return cli.UsageError("%s: NAME.crt is not there; make one with `moraine cert issue`", args[0])
				}
			}
			var infos []Certificate
			for _, name := range names {
				id, err := pki.LoadIdentity(pki.FilesIn(args[0], name))
				if err != nil {
					return err
				}
				info := describe(id.Claims(), id.NotBefore(), id.NotAfter())
				cert, _, _ := id.Current()
				key := pki.KeyOf(cert.Leaf)
				info.Serial, info.Key = pki.SerialOf(cert.Leaf), hex.EncodeToString(key[:])
				infos = append(infos, info)
			}
			return printCertificates(env, infos...)
		},
	}
}
