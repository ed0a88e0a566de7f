package localserver

import (
	"slices"

	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/s3err"
)

// account is the one account, as the library asks for accounts. (Its own service
// for a single account answers an unknown key with an error of its
// administration interface, which S3 clients do not know.)
type account struct {
	root auth.Account
}

var _ auth.IAMService = account{}

func (a account) GetUserAccount(access string) (auth.Account, error) {
	if access == a.root.Access {
		return a.root, nil
	}
	return auth.Account{}, auth.ErrNoSuchUser
}

// ResolveAccounts returns the keys that nobody has.
func (a account) ResolveAccounts(keys []string) ([]string, error) {
	return slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return k == a.root.Access }), nil
}

func (account) CreateAccount(auth.Account) error { return errOneAccount() }

func (account) UpdateUserAccount(string, auth.MutableProps) error { return errOneAccount() }

func (account) DeleteUserAccount(string) error { return errOneAccount() }

func (account) ListUserAccounts() ([]auth.Account, error) { return nil, errOneAccount() }

func (account) Shutdown() error { return nil }

func errOneAccount() error { return s3err.GetAPIError(s3err.ErrAdminMethodNotSupported) }
