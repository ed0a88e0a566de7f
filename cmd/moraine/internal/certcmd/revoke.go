package certcmd

import (
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
)

// revokeOptions are the flags of `moraine cert revoke`.
type revokeOptions struct {
	files, keys, serials, nodes []string
	role                        string
	undo, list                  bool
}

func newCertRevokeCommand(env *cli.Env) *cobra.Command {
	var o revokeOptions
	cmd := &cobra.Command{
		Use:   "revoke",
		Short: "Revoke certificates, or list the revoked ones",
		Long: `Put certificates on the cluster's list of revoked certificates. Within 10 seconds every
server ends the connections and sessions of their holders and refuses new ones. The
cluster counts a revoked chunkserver as down.

--file revokes the key of a certificate file: every certificate with that key. --key does
the same by the key's SHA-256. --serial revokes one certificate by its serial number
("moraine cert show --json" prints both). --node revokes all certificates that were issued
for that name up to now: of every role, or with --role of one. Servers accept a later one
with a new key. "Now" is the clock of the leader; if the clock of the machine that issued
was ahead, use --file. --undo takes entries off the list.

The command needs an admin's certificate that is not one of those to revoke.`,
		Example: `  moraine cert revoke --file ./ca/alice.crt
  moraine cert revoke --node n3 --role chunkserver
  moraine cert revoke --list`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return revokeCerts(env, cmd, o) },
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.files, "file", nil, "certificate file with the key to revoke; may be repeated")
	f.StringArrayVar(&o.keys, "key", nil, "SHA-256 of a public key, in hexadecimal; may be repeated")
	f.StringArrayVar(&o.serials, "serial", nil, "serial number of a certificate, in hexadecimal; may be repeated")
	f.StringArrayVar(&o.nodes, "node", nil, "name whose certificates up to now are revoked, of every "+
		"role; may be repeated")
	f.StringVar(&o.role, "role", "", "with --node: only its certificates of this role")
	f.BoolVar(&o.undo, "undo", false, "take the certificates off the list")
	f.BoolVar(&o.list, "list", false, "list the revoked certificates")
	return cmd
}

func revokeCerts(env *cli.Env, cmd *cobra.Command, o revokeOptions) error {
	op, err := o.request()
	if err != nil {
		return err
	}
	c, err := env.Dial(cmd.Context())
	if err != nil {
		return err
	}
	defer c.Close()
	if o.list {
		resp, err := rawclient.Of(c).Meta(cmd.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_ListRevoked{ListRevoked: &wire.ListRevoked{}}})
		if err != nil {
			return err
		}
		return printRevoked(env, resp.GetRevoked().GetRevocations())
	}
	if _, err := rawclient.Of(c).Meta(cmd.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_RevokeCert{RevokeCert: op}}); err != nil {
		return err
	}
	if env.Global.JSON {
		return printRevoked(env, op.Revocations)
	}
	if o.undo {
		env.Note("%d taken off the list of revoked certificates", len(op.Revocations))
		return nil
	}
	env.Note("%d revoked: every server applies this within 10 seconds", len(op.Revocations))
	return nil
}

// request reads the flags.
func (o *revokeOptions) request() (*wire.RevokeCert, error) {
	op := &wire.RevokeCert{Undo: o.undo}
	for _, path := range o.files {
		w, err := revocationOf(path)
		if err != nil {
			return nil, err
		}
		op.Revocations = append(op.Revocations, w)
	}
	for _, k := range o.keys {
		key, err := hex.DecodeString(k)
		if err != nil || len(key) != len(pki.KeyID{}) {
			return nil, cli.UsageError("--key %q: write the SHA-256 of the public key, %d hexadecimal "+
				"digits", k, 2*len(pki.KeyID{}))
		}
		op.Revocations = append(op.Revocations, &wire.Revocation{Key: key})
	}
	for _, s := range o.serials {
		s = strings.TrimLeft(strings.ToLower(strings.ReplaceAll(s, ":", "")), "0")
		if strings.Trim(s, "0123456789abcdef") != "" || s == "" {
			return nil, cli.UsageError("--serial %q: write a serial number in hexadecimal", s)
		}
		op.Revocations = append(op.Revocations, &wire.Revocation{Serial: s})
	}
	if o.role != "" && (!pki.Role(o.role).Valid() || len(o.nodes) == 0) {
		return nil, cli.UsageError("--role %q: write metadata, chunkserver, gateway, client or admin, "+
			"together with --node", o.role)
	}
	for _, n := range o.nodes {
		if !pki.ValidNode(n) {
			return nil, cli.UsageError("--node %q: this is not a node id; write letters, digits, dots and "+
				"dashes", n)
		}
		op.Revocations = append(op.Revocations, &wire.Revocation{Node: n, Role: o.role})
	}
	switch n := len(op.Revocations); {
	case o.list && (n > 0 || o.undo):
		return nil, cli.UsageError("--list takes no other flag of this command: leave out the others")
	case !o.list && n == 0:
		return nil, cli.UsageError("no certificate is named: give --file, --key, --serial or --node, or " +
			"--list")
	}
	return op, nil
}

// revocationOf revokes the key of the certificate in a file.
func revocationOf(path string) (*wire.Revocation, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, cli.UsageError("--file %s: this is not a certificate: name a NAME.crt", path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	claims, err := pki.ClaimsOf(cert)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	key := pki.KeyOf(cert)
	// The entry stays after this certificate expires: another certificate may have the same
	// key.
	return &wire.Revocation{Key: key[:], Node: claims.Node, Role: string(claims.Role)}, nil
}

// revokedInfo is an entry of the list, as the command prints it.
type revokedInfo struct {
	What string    `json:"what"` // key, serial or node
	ID   string    `json:"id"`
	Node string    `json:"node,omitempty"`
	Role string    `json:"role,omitempty"`
	At   time.Time `json:"at"`
}

func printRevoked(env *cli.Env, all []*wire.Revocation) error {
	infos := make([]revokedInfo, len(all))
	for i, w := range all {
		r := revokedInfo{What: "node", ID: w.Node, Node: w.Node, Role: w.Role, At: time.Unix(w.At, 0).UTC()}
		switch {
		case len(w.Key) > 0:
			r.What, r.ID = "key", hex.EncodeToString(w.Key)
		case w.Serial != "":
			r.What, r.ID = "serial", w.Serial
		}
		infos[i] = r
	}
	return cli.List(env, infos, table.Row{"revoked", "id", "node", "role", "at"}, func(r revokedInfo) table.Row {
		return table.Row{r.What, r.ID, r.Node, r.Role, r.At.Format(time.RFC3339)}
	})
}
